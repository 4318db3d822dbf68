"""The remoting protocol: frames, commands, headers and bodies, and the transports that carry them."""
