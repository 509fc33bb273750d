"""Campaigns: generated bad inputs, damaged folders, failing disks and attacks, each with a clear end."""

CAMPAIGNS = ("outputs", "inputs", "run_folders", "security", "finetuning", "aligning", "commands")
