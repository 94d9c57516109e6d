"""Every known attack on a sidecar at once, beside honest clients: what they notice, and what it costs the sidecar."""
