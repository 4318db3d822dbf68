"""Headers and bodies of requests about sets that elect their master."""
