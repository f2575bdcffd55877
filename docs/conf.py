"""What `make docs` builds the pages of this folder with: Sphinx and MyST."""

project = "mirage"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "mirage"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]  # links to files of the repository stay links
