"""The commands; each is a module that is imported only when it is called."""
