"""What every service shares on the wire: certificates, channels, codec, policy, errors."""
