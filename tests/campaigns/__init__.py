"""Campaigns: generated bad inputs, damaged folders, failing disks and attacks, each with a clear end."""

CAMPAIGNS = ("outputs", "inputs", "settings", "runs", "attacks", "io")
