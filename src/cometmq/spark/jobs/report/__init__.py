"""Reports of jobs: frozen data that is printed as text, as JSON and as one HTML page."""
