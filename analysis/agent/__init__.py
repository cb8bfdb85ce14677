"""For coding agents: the commands' answers over the Model Context Protocol, and a page on how to use them."""
