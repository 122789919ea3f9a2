"""Client quotas: how much of this node each user, client id and address may take."""
