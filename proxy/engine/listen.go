package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

// listen opens a listener whose accepted connections inherit what set does to
// the socket.
func listen(ctx context.Context, network, addr string, set func(network, addr string, c syscall.RawConn) error) (net.Listener, error) {
	lc := net.ListenConfig{Control: set, KeepAlive: -1}
	lc.SetMultipathTCP(false) // Go's default; it changes what the sockets are, and what tools see of them
	ln, err := lc.Listen(ctx, network, addr)
	if network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if err := RemoveStale(addr); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, addr)
}

// RemoveStale removes the socket file of a process that is gone. Only a refused
// connection proves that it is. The error says what is in the way otherwise.
func RemoveStale(path string) error {
	if strings.HasPrefix(path, "@") {
		return fmt.Errorf("listen on unix:%s: the address is in use", path) // abstract: there is no file
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on unix:%s: the file exists and is not a socket", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("listen on unix:%s: another process listens there", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on unix:%s: the socket is in use: %w", path, err)
	}
	return os.Remove(path)
}
