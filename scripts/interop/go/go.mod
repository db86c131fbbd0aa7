// A module of its own, so that the proxy's module needs no Thrift library. The
// package interop/probe is generated from ../probe.thrift at build time.
module interop

go 1.26.0

require github.com/apache/thrift v0.25.0
