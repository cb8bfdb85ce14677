"""A real session over stdio, by the protocol's own client."""

import asyncio
import sys

import pytest
from nvtx_kernels.analysis.agent.answers import QUESTIONS, Reports
from nvtx_kernels.analysis.agent.skill import page

from tests.analysis.making.plain_sql import OURS

mcp = pytest.importorskip("mcp")

CALLS = [
    ("reports", {}),
    ("overview", {"report": OURS.name}),
    ("fixes", {"report": OURS.name}),
    ("idle", {"report": OURS.name}),
    ("view", {"report": OURS.name, "name": "idle"}),
    ("view", {"report": OURS.name, "name": "memory"}),
    ("overview", {"report": "../README.md"}),
]


async def talk(folder):
    """Return the server's instructions, its tools by name, and what it answers to CALLS."""
    command = mcp.StdioServerParameters(command=sys.executable, args=["-m", "nvtx_kernels", "mcp", str(folder)])
    async with mcp.Client(command) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        answers = [(await client.call_tool(tool, arguments)).structured_content for tool, arguments in CALLS]
        return client.instructions, tools, answers


def test_a_session_lists_the_tools_and_gives_their_answers():
    instructions, tools, answers = asyncio.run(talk(OURS.parent))
    reports = Reports(OURS.parent)
    assert instructions == page()
    assert list(tools) == list(QUESTIONS)
    assert all(tool.annotations.read_only_hint and not tool.annotations.open_world_hint for tool in tools.values())
    assert answers == [getattr(reports, tool)(**arguments) for tool, arguments in CALLS]
