// Package main links the core. It is a package of its own because go keeps what it has compiled of
// all packages but those named main, and capi takes most of a build.
package main

import _ "github.com/paddlempi/paddlempi/capi"

func main() {}
