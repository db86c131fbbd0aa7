package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"

	"forebay/proxy/engine"
)

// Listen opens the listener for Run. A Unix socket gets the mode 0600, from the
// moment that it is there; a socket file that a dead process left is replaced.
func Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	if network != "unix" {
		return lc.Listen(ctx, network, addr)
	}
	listen := func() (net.Listener, error) { return lc.Listen(ctx, network, addr) }
	ln, err := privately(listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := engine.RemoveStale(addr); err != nil {
			return nil, err
		}
		ln, err = privately(listen)
	}
	if err != nil {
		return nil, err
	}
	if addr[0] == '/' && !isPrivate(ln.Addr()) {
		ln.Close()
		return nil, fmt.Errorf("listen on unix:%s: the file system does not keep the mode 0600", addr)
	}
	return ln, nil
}

// isPrivate reports whether addr is a socket that its owner alone can open. An
// abstract one has no mode: everybody in the network namespace can. Its name may be that
// of a file all the same.
func isPrivate(addr net.Addr) bool {
	if addr.Network() != "unix" || strings.HasPrefix(addr.String(), "@") {
		return false
	}
	info, err := os.Lstat(addr.String())
	return err == nil && info.Mode() == fs.ModeSocket|0o600
}
