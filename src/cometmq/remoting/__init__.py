"""The remoting protocol: frames, commands, headers and bodies without sockets, and the transports that carry them."""
