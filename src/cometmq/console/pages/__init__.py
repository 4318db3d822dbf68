"""The pages of the console; each module defines its routes as ``ROUTES``."""
