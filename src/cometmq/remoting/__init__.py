"""The remoting protocol: frames, commands, headers and bodies, which need no sockets, and the transports for them."""
