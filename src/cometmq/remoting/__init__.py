"""The remoting protocol: frames, commands, headers and bodies without sockets; transports beside them."""
