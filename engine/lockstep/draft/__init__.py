"""Who guesses the next tokens: copies, the MTP layer, the block drafter, and when to stop. No word of this reaches the text of a reply."""
