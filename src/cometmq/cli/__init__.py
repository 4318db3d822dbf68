"""The command-line commands. Each command's module is imported only when the command is called."""
