"""What an engine decides, over plain values: cache, scheduler, time; no sockets, no clock."""
