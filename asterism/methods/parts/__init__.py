"""What methods are made of: settings and steps that several share, and what would only fill one method's file."""
