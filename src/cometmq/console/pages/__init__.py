"""The pages of the console; each module gives its routes as ``ROUTES``."""
