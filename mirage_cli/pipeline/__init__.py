"""The stages in their order: `optimize` is the file to read first."""
