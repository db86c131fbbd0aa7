// Package e2e tests the forebay program as operators run it: flags in, signals,
// output and exit status out. It has no code of its own.
package e2e
