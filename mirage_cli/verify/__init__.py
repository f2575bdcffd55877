"""Does a μGraph compute its program? Structure checks and random tests over finite fields (docs/verification.md)."""
