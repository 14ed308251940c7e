"""Mining of training samples: rules that choose positives and negatives, and the audit of what they chose."""
