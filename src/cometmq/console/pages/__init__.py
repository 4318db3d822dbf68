"""The console's pages. Each module defines its routes as ``ROUTES``."""
