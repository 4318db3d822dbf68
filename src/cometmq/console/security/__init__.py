"""Who may use the console, and what browsers must not do for others."""
