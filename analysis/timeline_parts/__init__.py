"""What a timeline shows, as slices on tracks: ranges, launches, GPU work, and ranges projected onto the GPU."""
