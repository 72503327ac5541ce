// Package group makes process groups of what their members share, and frees them: the communicators, the memory of a node, what the
// members on a node have for levels. What a group does is the room of its collectives (package collective), and of its messages.
package group
