"""The processes of a load test: who registers, who fires, what they note down, and who starts them."""
