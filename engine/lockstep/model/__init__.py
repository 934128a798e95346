"""Models, each reading top to bottom like its description. Knows no requests and no sampling."""
