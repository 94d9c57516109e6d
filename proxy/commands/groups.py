"""The command about groups of consumers that a running sidecar coordinates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from proxy.commands.arguments import add_admin, add_output, command
from proxy.commands.output import encode_value
from proxy.commands.watching import show

if TYPE_CHECKING:
    from proxy.commands.arguments import Commands
    from proxy.config import Endpoint

ACTIONS = ("dump", "evacuate", "return")


def add(commands: Commands) -> None:
    """Put it on the command line."""
    made = command(commands, "groups", groups)
    text = f"Only this group, with its consumers and partitions; or one of {', '.join(ACTIONS)}."
    made.add_argument("what", nargs="?", metavar="GROUP", help=text)
    made.add_argument("--group", metavar="GROUP", help="Only this group, also one whose id is such a word.")
    add_admin(made)
    made.add_argument("--watch", action="store_true", help="Once a second, until Ctrl-C.")
    add_output(made, ("table", "json", "yaml"))


def groups(what: str | None, group: str | None, admin: Endpoint, watch: bool, output: str) -> None:
    """Show the groups that a sidecar coordinates; dump: as paths; evacuate, return: coordinate none, and again."""
    from proxy import admin_client
    from proxy.errors import LocalError
    from proxy.groups_view import NO_GROUPS, dump_paths, format_group, format_groups

    action = what if what in ACTIONS and group is None else None
    wanted = group if group is not None else what
    if group is not None and what is not None:
        raise LocalError("groups: a group is given twice")
    if action is not None and watch:
        raise LocalError(f"groups {action}: --watch is for what is shown")
    if action == "dump":
        listing = admin_client.get_groups(admin)
        if listing.reason is not None and listing.broker_id < 0:
            raise LocalError(f"{NO_GROUPS}: {listing.reason}")
        found = (admin_client.get_groups(admin, one.group_id).groups[0] for one in listing.groups)
        print("\n".join(dump_paths(found, listing.broker_id)))
    elif action is not None:
        is_evacuated = admin_client.post_evacuation(admin, action)
        print(
            "this sidecar coordinates no group any more: other sidecars take its partitions"
            if is_evacuated
            else "this sidecar coordinates groups again: its partitions come back within a minute"
        )
    else:

        def text() -> str:
            listing = admin_client.get_groups(admin, wanted)
            if output != "table":
                return encode_value(listing, output)
            if wanted is None or listing.reason is not None:
                return format_groups(listing, time.time())
            return format_group(listing.groups[0], time.time())

        show(text, watch, output)
