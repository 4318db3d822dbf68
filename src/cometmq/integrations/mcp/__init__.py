"""The MCP server (``cometmq mcp``): gives agents the tools of RocketMQ Studio's catalogue, and explains why a message
was not consumed.

Theory of operation. A tool is a function with a parameter class; its JSON schema is made from the class. Tools of level
L1 read. Tools of the levels L2 and L3 change something: they exist only with ``--allow-writes``, and they work in two
steps. The first call returns a plan and a token; the second call, with this token, carries the plan out.

Threats. Bodies, tags, keys, properties and client ids come from strangers, who may write instructions for the agent
into them. So they are cut, masked, and enclosed in a mark with a random number that is new for each call. A token is
bound to its tool, to all arguments and to the state that the plan was made from. It is used once, and expires. An
answer has a maximum size, a call has a time limit, and each call writes a line to the audit log.
"""

from __future__ import annotations

from cometmq.errors import require

EXTRA = "mcp"
require("the MCP server", EXTRA, "mcp")
