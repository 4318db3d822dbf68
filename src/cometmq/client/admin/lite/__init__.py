"""Administration of lite topics."""
