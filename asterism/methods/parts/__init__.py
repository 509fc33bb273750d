"""Parts of methods: settings and steps that several share, and details kept out of a method's file."""
