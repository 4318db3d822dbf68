"""Headers and bodies of requests about lite topics."""
