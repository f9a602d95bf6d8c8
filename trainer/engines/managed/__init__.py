"""What manager-based engines (mjlab, Isaac Lab) share: the task behind their managers."""
