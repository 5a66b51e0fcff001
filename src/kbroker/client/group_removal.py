"""Removal of members of groups of any kind, by an administrator.

Members of classic and consumer groups are removed by LeaveGroup, as by Kafka's `removeMembersFromConsumerGroup`; those
of share and streams groups by the heartbeat with which they would leave.
"""

from __future__ import annotations

from kbroker.client.cluster import check, retried
from kbroker.client.connection import Body
from kbroker.client.groups import SHARE, STREAMS, GroupMember, Groups

LEAVE_GROUP, SHARE_GROUP_HEARTBEAT, STREAMS_GROUP_HEARTBEAT = 13, 76, 88
FIRST_WITH_MEMBERS, FIRST_WITH_REASON = 3, 5  # versions of LeaveGroup
LEAVE_EPOCH = -1
REASON = "removed by an administrator"


@retried
def remove_member(groups: Groups, group_id: str, group_type: str, member: GroupMember) -> None:
    """Remove a member from its group; a client that still runs joins again.

    Raises: as ``Groups``; KafkaError UNKNOWN_MEMBER_ID if it has left.
    """

    def leave(version: int) -> Body:
        if version < FIRST_WITH_MEMBERS:
            return {"GroupId": group_id, "MemberId": member.member_id}
        reason = {"Reason": REASON} if version >= FIRST_WITH_REASON else {}
        return {
            "GroupId": group_id,
            "Members": [{"MemberId": member.member_id, "GroupInstanceId": member.instance_id, **reason}],
        }

    what = f"member {member.member_id!r} of group {group_id!r}"
    if group_type in (SHARE, STREAMS):
        api_key = SHARE_GROUP_HEARTBEAT if group_type == SHARE else STREAMS_GROUP_HEARTBEAT
        body = {"GroupId": group_id, "MemberId": member.member_id, "MemberEpoch": LEAVE_EPOCH}
        response = groups.ask(group_id, api_key, body)
        check(response["ErrorCode"], what, response.get("ErrorMessage"))
        return
    response = groups.ask(group_id, LEAVE_GROUP, leave)
    check(response["ErrorCode"], what)
    for row in response.get("Members") or ():
        check(row["ErrorCode"], what)
