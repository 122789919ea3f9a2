"""The classic protocol of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""
