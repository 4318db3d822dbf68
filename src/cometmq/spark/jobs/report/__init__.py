"""Job reports: frozen data that can be shown as text, as JSON or as one HTML page."""
