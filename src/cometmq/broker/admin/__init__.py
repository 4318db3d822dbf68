"""Administration: the requests of tools (AdminBrokerProcessor), a module for each subject."""
