"""What the daemon does in a turn, and between turns: commands in, reports out, the loop and its sockets."""
