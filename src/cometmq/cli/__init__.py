"""The commands. Each is a module that is loaded only when it is called."""
