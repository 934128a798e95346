"""The one channel between the front process and the engine process: frames over an inherited socket."""
