module github.com/paddlempi/paddlempi

go 1.24
