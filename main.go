// Command forebay is a layer-4 TCP proxy that keeps a bounded pool of
// connections to each backend. See README.md, and package proxy for how it works.
package main

import (
	"context"
	"os"

	"forebay/proxy/command"
	"forebay/proxy/config"
)

func main() {
	os.Exit(config.Run(context.Background(), os.Args, config.Process{}, command.Version(), command.Actions()))
}
