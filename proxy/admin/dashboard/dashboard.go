// Package dashboard is the page that shows operators a running forebay in a browser:
// clients, queue and backends, every second, from the JSON and the metrics of the
// admin listener that serves it.
//
// The page is a few files without a build step. It loads nothing from elsewhere, its
// policy has the browser refuse that, and whatever data it shows is text to it.
package dashboard

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed page
var content embed.FS

// Prefix is where the files are that the page loads. The page itself is at /.
const Prefix = "/dashboard/"

// policy allows the page what it has, and nothing else: no code or style that stands
// in the page, no other host, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at /, and its files below Prefix.
func Handler() http.Handler {
	page, err := fs.Sub(content, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, page, "index.html") })
	mux.HandleFunc("GET "+Prefix+"{file}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, page, r.PathValue("file"))
	})
	return withPolicy(mux)
}

func withPolicy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		next.ServeHTTP(w, r)
	})
}
