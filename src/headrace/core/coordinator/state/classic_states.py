"""The states of a classic group: actions on each request, and transitions."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """The states of a classic group, under the names that DescribeGroups and ListGroups show.

    EMPTY, COMPLETING_REBALANCE and STABLE are states of a stored generation. PREPARING_REBALANCE is soft: it hides the
    stored state while members join. After a crash the stored state is visible again. DEAD is shown for a group that
    does not exist.
    """

    EMPTY = "Empty"
    """No members; it may have committed offsets.

    action: JoinGroup with an unknown member id -> MEMBER_ID_REQUIRED (from version 4 on) or the member is added
            JoinGroup with an unassigned member id -> UNKNOWN_MEMBER_ID
            SyncGroup, Heartbeat -> UNKNOWN_MEMBER_ID
            LeaveGroup -> UNKNOWN_MEMBER_ID for each member; a pending member id is removed
            OffsetCommit with generation -1 -> accepted (consumers that manage their partitions themselves, tools)
            OffsetFetch -> answered; all offsets expired -> the group is deleted
    transition: the first member is added -> PREPARING_REBALANCE; deleted -> DEAD
    """

    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are joining the next generation; the present one is still valid for commits.

    action: JoinGroup -> parked until the join phase completes
            SyncGroup, Heartbeat of the present generation -> REBALANCE_IN_PROGRESS (a heartbeat extends the session)
            OffsetCommit of the present generation -> accepted
            LeaveGroup, an expired session -> the member is removed
            time is up -> dynamic members that have not joined are removed
    transition: all members have joined, or time is up, and members remain -> COMPLETING_REBALANCE
                all members have left -> EMPTY
    """

    COMPLETING_REBALANCE = "CompletingRebalance"
    """The new generation is durable; the leader's assignment is awaited.

    action: SyncGroup of a follower -> parked; of the leader -> the assignment is stored, all parked ones are answered
            Heartbeat -> accepted; OffsetCommit -> REBALANCE_IN_PROGRESS
            JoinGroup with the metadata it joined with -> the generation again (its first response was lost)
    transition: the assignment is stored -> STABLE
                a new or changed member, a member leaves or expires, members do not sync in time -> PREPARING_REBALANCE
    """

    STABLE = "Stable"
    """Every member has its assignment.

    action: SyncGroup -> the assignment; Heartbeat, OffsetCommit -> accepted
            JoinGroup of a follower with unchanged metadata -> the present generation
            JoinGroup of a static member that restarted, with an unchanged subscription -> its new id takes the old
            one's place in a new record of the same generation
    transition: the leader joins, a new or changed member joins, a member leaves or expires -> PREPARING_REBALANCE
    """

    DEAD = "Dead"
    """The group does not exist (any more).

    action: DescribeGroups shows this state; SyncGroup, Heartbeat, LeaveGroup -> UNKNOWN_MEMBER_ID;
            OffsetCommit with generation -1 and JoinGroup with an unknown member id create the group
    """
