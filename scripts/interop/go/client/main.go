// Command client makes each kind of call with the Thrift library for Go, checks
// the replies, and says "ok NAME" or "fail NAME why" of each:
//
//	client HOST PORT TRANSPORT PROTOCOL TAG
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"interop/form"
	"interop/probe"
)

const timeout = 15 * time.Second // long: the machine may be busy

var ctx = context.Background()

// dial opens a connection, and returns what ends it.
func dial(addr, transport, protocol string) (*probe.WiderClient, func() error, error) {
	conf := &thrift.TConfiguration{ConnectTimeout: timeout, SocketTimeout: timeout}
	tf, pf, err := form.Factories(transport, protocol, conf)
	if err != nil {
		return nil, nil, err
	}
	t, err := tf.GetTransport(thrift.NewTSocketConf(addr, conf))
	if err != nil {
		return nil, nil, err
	}
	if err := t.Open(); err != nil {
		return nil, nil, err
	}
	in := pf.GetProtocol(t)
	out := in // one and the same: a header protocol answers in the form it was asked in
	if transport == form.Multiplexed {
		out = thrift.NewTMultiplexedProtocol(in, "Probe")
	}
	return probe.NewWiderClient(thrift.NewTStandardClient(in, out)), t.Close, nil
}

func echo(c *probe.WiderClient, text string) error {
	got, err := c.Echo(ctx, text)
	if err == nil && got != text {
		err = fmt.Errorf("echo of %d bytes: got %d bytes, %.40q", len(text), len(got), got)
	}
	return err
}

func binary(c *probe.WiderClient, tag string) error {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i*31 + i>>8)
	}
	copy(data, tag)
	got, err := c.EchoBinary(ctx, data)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("echo of %d bytes: got %d other bytes", len(data), len(got))
	}
	return err
}

func tree(c *probe.WiderClient, tag string) error {
	leaf := func(i int) *probe.Leaf {
		return &probe.Leaf{ID: int32(i), Name: fmt.Sprint(tag, " größe ", i), On: i%2 == 0, Weight: float64(i) / 4}
	}
	want := &probe.Tree{
		Leaf:    leaf(-1),
		Named:   map[string]*probe.Leaf{"": leaf(0), tag: leaf(1)},
		Numbers: map[int32][]int64{-1: {}, 7: {1, -1, 1 << 40}},
		Few:     []int16{3, -300},
		Blob:    []byte{0, 255, 128, 1},
		Small:   -8,
	}
	for i := range 300 {
		want.Leaves = append(want.Leaves, leaf(i))
	}
	got, err := c.EchoTree(ctx, want)
	if err != nil {
		return err
	}
	if len(got.Few) == 2 && got.Few[0] == -300 { // a set has no order
		got.Few[0], got.Few[1] = got.Few[1], got.Few[0]
	}
	if !reflect.DeepEqual(got, want) {
		return errors.New("echo of another tree")
	}
	return nil
}

func refuse(c *probe.WiderClient, tag string) error {
	err := c.Refuse(ctx, tag)
	var r *probe.Refused
	if !errors.As(err, &r) || r.Code != 7 || r.Why != tag {
		return fmt.Errorf("want the refusal, got %v", err)
	}
	return nil
}

func unknown(c *probe.WiderClient, tag string) error {
	got, err := c.Absent(ctx, tag)
	var e thrift.TApplicationException
	if !errors.As(err, &e) {
		return fmt.Errorf("want an exception, got %q, %v", got, err)
	}
	// The library for Node.js tells the type only in words.
	if e.TypeId() > thrift.UNKNOWN_METHOD || !strings.Contains(e.Error(), "absent") {
		return fmt.Errorf("want an unknown method, got type %d, %v", e.TypeId(), e)
	}
	return nil
}

// oneway fires n times. The calls may take effect after the next call has been
// answered, but not twice.
func oneway(c *probe.WiderClient, key string, n int32) error {
	for range n {
		if err := c.Fire(ctx, key); err != nil {
			return err
		}
	}
	var got int32
	for end := time.Now().Add(timeout); got != n && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		if got, err = c.Fired(ctx, key); err != nil {
			return err
		}
	}
	if got != n {
		return fmt.Errorf("fired %d times, came in %d times", n, got)
	}
	return nil
}

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: client HOST PORT TRANSPORT PROTOCOL TAG")
	}
	addr, transport, protocol, tag := net.JoinHostPort(os.Args[1], os.Args[2]), os.Args[3], os.Args[4], os.Args[5]
	type client = *probe.WiderClient
	calls := []struct {
		name string
		call func(client) error
	}{
		{"string-0", func(c client) error { return echo(c, "") }},
		{"string-7", func(c client) error { return echo(c, tag) }},
		{"string-70000", func(c client) error { return echo(c, strings.Repeat(tag, 10000)) }},
		{"binary", func(c client) error { return binary(c, tag) }},
		{"tree", func(c client) error { return tree(c, tag) }},
		{"exception", func(c client) error { return refuse(c, tag) }},
		{"void", func(c client) error { return c.Ping(ctx) }},
		{"oneway", func(c client) error { return oneway(c, tag+" one", 1) }},
		{"oneways", func(c client) error { return oneway(c, tag+" five", 5) }},
		{"unknown", func(c client) error { return unknown(c, tag) }},
		{"last", func(c client) error { return echo(c, tag+" last") }},
	}
	var c client
	var hangUp func() error
	for _, call := range calls {
		var err error
		if c == nil {
			c, hangUp, err = dial(addr, transport, protocol)
		}
		if err == nil {
			err = call.call(c)
		}
		if err == nil {
			fmt.Println("ok", call.name)
			continue
		}
		fmt.Println("fail", call.name, err)
		if c != nil {
			hangUp()
			c = nil // the next call has a connection of its own
		}
	}
	if c != nil {
		hangUp()
	}
}
