package dashboard

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// maxSize bounds the page with all its files, in bytes.
const maxSize = 50 << 10

func get(t *testing.T, target string) (*http.Response, string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	res := w.Result()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

// files returns the content of each file of the page by its name.
func files(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := fs.WalkDir(content, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := content.ReadFile(name)
		all[path.Base(name)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPageAndFilesAreServedWithThePolicy(t *testing.T) {
	types := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
	for name, want := range files(t) {
		target := Prefix + name
		if name == "index.html" {
			target = "/"
		}
		res, got := get(t, target)
		if res.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s: got %s and %d bytes; want %d", target, res.Status, len(got), len(want))
		}
		if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, types[path.Ext(name)]) {
			t.Errorf("%s: got content type %q", target, ct)
		}
		if csp := res.Header.Get("Content-Security-Policy"); csp != policy {
			t.Errorf("%s: got policy %q", target, csp)
		}
	}
}

func TestNothingElseIsServed(t *testing.T) {
	for _, target := range []string{"/dashboard", Prefix, Prefix + "none.js", Prefix + "x/page.js", Prefix + "..%2fdashboard.go", "/index.html"} {
		if res, _ := get(t, target); res.StatusCode < 400 {
			t.Errorf("%s: got %s", target, res.Status)
		}
	}
}

func TestPageIsSmall(t *testing.T) {
	size := 0
	for _, text := range files(t) {
		size += len(text)
	}
	if size > maxSize {
		t.Errorf("the page has %d bytes; want at most %d", size, maxSize)
	}
}

// TestPageKeepsToItself looks for what the policy would refuse, and for the ways in
// which data becomes markup.
func TestPageKeepsToItself(t *testing.T) {
	refused := map[string]*regexp.Regexp{
		"an address elsewhere":  regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]`),
		"a handler or style":    regexp.MustCompile(`<[^>]*\s(on[a-z]+|style)=`),
		"data as markup":        regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc`),
		"text as code":          regexp.MustCompile(`\beval\(|new Function|setTimeout\(['"]`),
		"code or style in page": regexp.MustCompile(`<script>|<style`),
	}
	for name, text := range files(t) {
		text = strings.ReplaceAll(text, "http://www.w3.org/2000/svg", "") // a name
		for what, pattern := range refused {
			if found := pattern.FindString(text); found != "" {
				t.Errorf("%s has %s: %s", name, what, found)
			}
		}
	}
}

// TestPageFindsItsFiles follows what the files load of each other.
func TestPageFindsItsFiles(t *testing.T) {
	all := files(t)
	loads := regexp.MustCompile(`(?:href|src)="dashboard/([^"]+)"|from '\./([^']+)'|import\('\./([^']+)'`)
	loaded := map[string]bool{"index.html": true}
	for name, text := range all {
		for _, m := range loads.FindAllStringSubmatch(text, -1) {
			file := m[1] + m[2] + m[3]
			loaded[file] = true
			if _, ok := all[file]; !ok {
				t.Errorf("%s loads %s, which is not there", name, file)
			}
		}
	}
	for name := range all {
		if !loaded[name] {
			t.Errorf("nothing loads %s", name)
		}
	}
}
