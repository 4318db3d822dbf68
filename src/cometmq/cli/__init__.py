"""The commands. Each lives in a module of its own, loaded only when it is called."""
